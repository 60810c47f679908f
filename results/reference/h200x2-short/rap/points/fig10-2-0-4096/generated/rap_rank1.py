"""Generated: preprocessing of plan0 on rank 1 of 2.

70 operators in 7 launches, 14.5 us predicted by themselves,
0.0 us of them beyond what the stages hide.
Fusion: highs, gap 0.00 %.
"""


def grad_comm(run):
    """14.5 us predicted, beside 97.7 us of training that hide 76.3."""
    run[0]()  # fill_null:float32@dense, 1.8 us: int_0_0_fill_null, int_1_0_fill_null, int_2_0_fill_null and 10 more
    run[1]()  # fill_null:int64@global, 1.8 us: cat_3_0_fill_null, cat_9_0_fill_null, cat_12_0_fill_null and 11 more
    run[2]()  # fill_null:float32@global, 1.7 us: int_0_0_fill_null
    run[3]()  # logit:float32@dense, 1.8 us: int_0_1_logit, int_1_1_logit, int_2_1_logit and 10 more
    run[4]()  # sigrid_hash:int64@global, 3.4 us: cat_3_1_sigrid_hash, cat_9_1_sigrid_hash, cat_12_1_sigrid_hash and 11 more
    run[5]()  # bucketize:float32@global, 1.8 us: cat_26
    run[6]()  # first_x:int64@global, 2.2 us: cat_3_2_first_x, cat_9_2_first_x, cat_12_2_first_x and 11 more
