"""Generated: preprocessing of plan1 on rank 1 of 2.

61 operators in 7 launches, 14.1 us predicted by themselves,
0.0 us of them beyond what the stages hide.
Fusion: highs, gap 0.00 %.
"""


def emb_fwd(run):
    """14.1 us predicted, beside 150.3 us of training that hide 110.9."""
    run[0]()  # fill_null:float32@dense, 1.7 us: int_0_0_fill_null, int_1_0_fill_null, int_2_0_fill_null and 10 more
    run[1]()  # fill_null:int64@global, 1.8 us: cat_0_0_fill_null, cat_6_0_fill_null, cat_10_0_fill_null and 8 more
    run[2]()  # fill_null:float32@global, 1.6 us: int_0_0_fill_null
    run[3]()  # logit:float32@dense, 1.8 us: int_0_1_logit, int_1_1_logit, int_2_1_logit and 10 more
    run[4]()  # sigrid_hash:int64@global, 3.2 us: cat_0_1_sigrid_hash, cat_6_1_sigrid_hash, cat_10_1_sigrid_hash and 8 more
    run[5]()  # bucketize:float32@global, 1.8 us: cat_26
    run[6]()  # first_x:int64@global, 2.1 us: cat_0_2_first_x, cat_6_2_first_x, cat_10_2_first_x and 8 more
