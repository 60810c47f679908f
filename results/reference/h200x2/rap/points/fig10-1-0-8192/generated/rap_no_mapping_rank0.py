"""Generated: preprocessing of plan0 on rank 0 of 1.

106 operators in 7 launches, 16.1 us predicted by themselves,
0.0 us of them beyond what the stages hide.
Fusion: highs, gap 0.00 %.
"""


def emb_bwd(run):
    """16.1 us predicted, beside 181.1 us of training that hide 288.8."""
    run[0]()  # fill_null:float32@dense, 1.9 us: int_0_0_fill_null, int_1_0_fill_null, int_2_0_fill_null and 10 more
    run[1]()  # fill_null:int64@global, 2.1 us: cat_0_0_fill_null, cat_1_0_fill_null, cat_2_0_fill_null and 23 more
    run[2]()  # fill_null:float32@global, 1.7 us: int_0_0_fill_null
    run[3]()  # logit:float32@dense, 1.9 us: int_0_1_logit, int_1_1_logit, int_2_1_logit and 10 more
    run[4]()  # sigrid_hash:int64@global, 4.3 us: cat_0_1_sigrid_hash, cat_1_1_sigrid_hash, cat_2_1_sigrid_hash and 23 more
    run[5]()  # bucketize:float32@global, 1.8 us: cat_26
    run[6]()  # first_x:int64@global, 2.5 us: cat_0_2_first_x, cat_1_2_first_x, cat_2_2_first_x and 23 more
