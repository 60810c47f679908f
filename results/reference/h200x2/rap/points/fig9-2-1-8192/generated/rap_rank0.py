"""Generated: preprocessing of plan1 on rank 0 of 2.

71 operators in 5 launches, 13.2 us predicted by themselves,
0.0 us of them beyond what the stages hide.
Fusion: highs, gap 0.00 %.
"""


def grad_comm(run):
    """13.2 us predicted, beside 98.8 us of training that hide 73.0."""
    run[0]()  # fill_null:float32@dense, 1.9 us: int_0_0_fill_null, int_1_0_fill_null, int_2_0_fill_null and 10 more
    run[1]()  # fill_null:int64@global, 2.2 us: cat_1_0_fill_null, cat_2_0_fill_null, cat_3_0_fill_null and 12 more
    run[2]()  # logit:float32@dense, 1.9 us: int_0_1_logit, int_1_1_logit, int_2_1_logit and 10 more
    run[3]()  # sigrid_hash:int64@global, 4.6 us: cat_1_1_sigrid_hash, cat_2_1_sigrid_hash, cat_3_1_sigrid_hash and 12 more
    run[4]()  # first_x:int64@global, 2.6 us: cat_1_2_first_x, cat_2_2_first_x, cat_3_2_first_x and 12 more
