"""Generated: preprocessing of plan2 on rank 0 of 1.

472 operators in 36 launches, 131.1 us predicted by themselves,
0.0 us of them beyond what the stages hide.
Fusion: highs, gap 0.00 %.
"""


def emb_bwd(run):
    """131.1 us predicted, beside 374.1 us of training that hide 596.6."""
    run[0]()  # fill_null:float32@dense, 1.8 us: int_0_0_fill_null, int_1_0_fill_null, int_2_0_fill_null and 23 more
    run[1]()  # fill_null:int64@global, 6.1 us: cat_0_0_fill_null, cat_1_0_fill_null, cat_2_0_fill_null and 49 more
    run[2]()  # clamp:float32@dense, 1.7 us: int_1_1_clamp, int_7_1_clamp, int_13_1_clamp and 2 more
    run[3]()  # cast:float32@dense, 1.7 us: int_2_1_cast, int_8_1_cast, int_14_1_cast and 1 more
    run[4]()  # bucketize:float32@dense, 1.8 us: int_3_1_bucketize, int_9_1_bucketize, int_15_1_bucketize and 1 more
    run[5]()  # one_hot:float32@dense, 2.9 us: int_4_1_one_hot, int_10_1_one_hot, int_16_1_one_hot and 1 more
    run[6]()  # boxcox:float32@dense, 2.0 us: int_5_1_boxcox, int_11_1_boxcox, int_17_1_boxcox and 1 more
    run[7]()  # first_x:int64@global, 2.4 us: cat_0_1_first_x, cat_4_1_first_x, cat_8_1_first_x and 10 more
    run[8]()  # clamp:int64@global, 2.0 us: cat_1_1_clamp, cat_9_1_clamp, cat_17_1_clamp and 4 more
    run[9]()  # ngram:int64@global, 4.8 us: cat_2_1_ngram, cat_6_1_ngram, cat_10_1_ngram and 10 more
    run[10]()  # one_hot:float32@dense, 3.1 us: int_1_2_one_hot, int_7_2_one_hot, int_13_2_one_hot and 2 more
    run[11]()  # sigrid_hash:int64@dense, 2.7 us: int_2_2_sigrid_hash, int_8_2_sigrid_hash, int_14_2_sigrid_hash and 1 more
    run[12]()  # ngram:float32@dense, 3.3 us: int_4_2_ngram, int_10_2_ngram, int_16_2_ngram and 1 more
    run[13]()  # sigrid_hash:int64@global, 19.1 us: cat_1_2_sigrid_hash, cat_2_2_sigrid_hash, cat_3_1_sigrid_hash and 36 more
    run[14]()  # cast:int64@global, 1.7 us: cat_4_2_cast, cat_12_2_cast, cat_20_2_cast and 3 more
    run[15]()  # first_x:float32@dense, 2.5 us: int_1_3_first_x, int_4_3_first_x, int_7_3_first_x and 6 more
    run[16]()  # map_id:int64@dense, 1.8 us: int_2_3_map_id, int_8_3_map_id, int_14_3_map_id and 1 more
    run[17]()  # sigrid_hash:int64@global, 5.4 us: cat_2_3_sigrid_hash, cat_10_3_sigrid_hash, cat_18_3_sigrid_hash and 4 more
    run[18]()  # clamp:int64@global, 2.3 us: cat_3_2_clamp, cat_6_3_clamp, cat_11_2_clamp and 10 more
    run[19]()  # one_hot:float32@global, 3.4 us: cat_4_3_one_hot, cat_12_3_one_hot, cat_20_3_one_hot and 3 more
    run[20]()  # cast:int64@global, 1.8 us: cat_5_2_cast, cat_7_2_cast, cat_13_2_cast and 9 more
    run[21]()  # clamp:float32@dense, 1.7 us: int_0_1_clamp, int_1_4_clamp, int_4_4_clamp and 15 more
    run[22]()  # cast:int64@dense, 1.7 us: int_2_4_cast, int_3_2_cast, int_8_4_cast and 5 more
    run[23]()  # cast:float32@global, 2.2 us: cat_4_4_cast, cat_12_4_cast, cat_20_4_cast and 3 more
    run[24]()  # bucketize:float32@global, 2.2 us: cat_5_3_bucketize, cat_13_3_bucketize, cat_21_3_bucketize and 3 more
    run[25]()  # clamp:float32@global, 2.1 us: cat_7_3_clamp, cat_15_3_clamp, cat_23_3_clamp and 3 more
    run[26]()  # boxcox:float32@dense, 2.1 us: int_0_2_boxcox, int_1_5_boxcox, int_2_5_boxcox and 19 more
    run[27]()  # ngram:int64@global, 7.9 us: cat_0_2_ngram, cat_3_3_ngram, cat_4_5_ngram and 23 more
    run[28]()  # cast:float32@global, 2.2 us: cat_7_4_cast, cat_15_4_cast, cat_23_4_cast and 3 more
    run[29]()  # logit:float32@dense, 2.1 us: int_0_3_logit, int_3_4_logit, int_4_5_logit and 14 more
    run[30]()  # clamp:float32@dense, 1.7 us: int_2_6_clamp, int_8_6_clamp, int_14_6_clamp and 1 more
    run[31]()  # sigrid_hash:int64@global, 13.1 us: cat_0_3_sigrid_hash, cat_4_6_sigrid_hash, cat_5_4_sigrid_hash and 22 more
    run[32]()  # map_id:int64@global, 9.8 us: cat_1_3_map_id, cat_2_4_map_id, cat_3_4_map_id and 24 more
    run[33]()  # boxcox:float32@dense, 2.0 us: int_2_7_boxcox, int_8_7_boxcox, int_14_7_boxcox and 1 more
    run[34]()  # clamp:float32@dense, 1.7 us: int_5_5_clamp, int_11_5_clamp, int_17_5_clamp and 1 more
    run[35]()  # first_x:int64@global, 4.2 us: cat_0_4_first_x, cat_1_4_first_x, cat_2_5_first_x and 49 more
