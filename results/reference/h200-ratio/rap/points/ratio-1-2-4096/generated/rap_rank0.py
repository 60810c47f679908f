"""Generated: preprocessing of plan2_x3 on rank 0 of 1.

1416 operators in 65 launches, 378.3 us predicted by themselves,
0.0 us of them beyond what the stages hide.
Fusion: highs, gap 5.02 %; out of time after 2 s: the best plan found is used; the optimum is at most 5.0 % above it.
"""


def emb_bwd(run):
    """378.3 us predicted, beside 393.7 us of training that hide 629.3."""
    run[0]()  # fill_null:float32@dense, 1.8 us: int_0_0_fill_null, int_1_0_fill_null, int_2_0_fill_null and 23 more
    run[1]()  # fill_null:int64@global, 6.0 us: cat_0_0_fill_null, cat_1_0_fill_null, cat_2_0_fill_null and 49 more
    run[2]()  # clamp:float32@dense, 1.7 us: int_1_1_clamp, int_7_1_clamp, int_13_1_clamp and 2 more
    run[3]()  # cast:float32@dense, 1.7 us: int_2_1_cast, int_8_1_cast, int_14_1_cast and 1 more
    run[4]()  # bucketize:float32@dense, 1.8 us: int_3_1_bucketize, int_9_1_bucketize, int_15_1_bucketize and 1 more
    run[5]()  # first_x:int64@global, 2.4 us: cat_0_1_first_x, cat_4_1_first_x, cat_8_1_first_x and 10 more
    run[6]()  # clamp:int64@global, 2.0 us: cat_1_1_clamp, cat_9_1_clamp, cat_17_1_clamp and 4 more
    run[7]()  # ngram:int64@global, 4.8 us: cat_2_1_ngram, cat_6_1_ngram, cat_10_1_ngram and 10 more
    run[8]()  # one_hot:float32@dense, 3.8 us: int_1_2_one_hot, int_4_1_one_hot, int_7_2_one_hot and 6 more
    run[9]()  # sigrid_hash:int64@dense, 2.8 us: int_2_2_sigrid_hash, int_8_2_sigrid_hash, int_14_2_sigrid_hash and 1 more
    run[10]()  # sigrid_hash:int64@global, 18.9 us: cat_1_2_sigrid_hash, cat_2_2_sigrid_hash, cat_3_1_sigrid_hash and 36 more
    run[11]()  # cast:int64@global, 1.7 us: cat_4_2_cast, cat_12_2_cast, cat_20_2_cast and 3 more
    run[12]()  # map_id:int64@dense, 1.8 us: int_2_3_map_id, int_8_3_map_id, int_14_3_map_id and 1 more
    run[13]()  # ngram:float32@dense, 3.3 us: int_4_2_ngram, int_10_2_ngram, int_16_2_ngram and 1 more
    run[14]()  # sigrid_hash:int64@global, 5.4 us: cat_2_3_sigrid_hash, cat_10_3_sigrid_hash, cat_18_3_sigrid_hash and 4 more
    run[15]()  # clamp:int64@global, 2.3 us: cat_3_2_clamp, cat_6_3_clamp, cat_11_2_clamp and 10 more
    run[16]()  # one_hot:float32@global, 3.3 us: cat_4_3_one_hot, cat_12_3_one_hot, cat_20_3_one_hot and 3 more
    run[17]()  # cast:int64@global, 1.7 us: cat_5_2_cast, cat_7_2_cast, cat_13_2_cast and 9 more
    run[18]()  # first_x:float32@dense, 2.5 us: int_1_3_first_x, int_4_3_first_x, int_7_3_first_x and 6 more
    run[19]()  # cast:int64@dense, 1.6 us: int_2_4_cast, int_3_2_cast, int_8_4_cast and 5 more
    run[20]()  # cast:float32@global, 2.2 us: cat_4_4_cast, cat_12_4_cast, cat_20_4_cast and 3 more
    run[21]()  # bucketize:float32@global, 2.2 us: cat_5_3_bucketize, cat_13_3_bucketize, cat_21_3_bucketize and 3 more
    run[22]()  # clamp:float32@global, 2.1 us: cat_7_3_clamp, cat_15_3_clamp, cat_23_3_clamp and 3 more
    run[23]()  # boxcox:float32@dense, 2.0 us: int_2_5_boxcox, int_5_1_boxcox, int_8_5_boxcox and 5 more
    run[24]()  # ngram:int64@global, 8.0 us: cat_0_2_ngram, cat_3_3_ngram, cat_4_5_ngram and 23 more
    run[25]()  # cast:float32@global, 2.2 us: cat_7_4_cast, cat_15_4_cast, cat_23_4_cast and 3 more
    run[26]()  # clamp:float32@dense, 1.8 us: int_0_1_clamp, int_1_4_clamp, int_2_6_clamp and 19 more
    run[27]()  # sigrid_hash:int64@global, 24.8 us: cat_0_3_sigrid_hash_extra0, cat_1_3_map_id_extra0, cat_2_4_map_id_extra0 and 49 more
    run[28]()  # boxcox:float32@dense, 2.1 us: int_0_2_boxcox, int_1_5_boxcox_base, int_2_7_boxcox_base and 19 more
    run[29]()  # map_id:int64@global, 21.5 us: cat_0_3_sigrid_hash_extra1, cat_1_3_map_id_extra1, cat_2_4_map_id_extra1 and 49 more
    run[30]()  # logit:float32@dense, 2.1 us: int_0_3_logit_base, int_3_4_logit_base, int_4_5_logit_base and 14 more
    run[31]()  # clamp:float32@dense, 1.6 us: int_2_7_boxcox_extra0, int_8_7_boxcox_extra0, int_14_7_boxcox_extra0 and 1 more
    run[32]()  # clamp:int64@global, 4.8 us: cat_0_3_sigrid_hash_extra2, cat_1_3_map_id_extra2, cat_2_4_map_id_extra2 and 49 more
    run[33]()  # boxcox:float32@dense, 2.0 us: int_2_7_boxcox_extra1, int_8_7_boxcox_extra1, int_14_7_boxcox_extra1 and 1 more
    run[34]()  # clamp:float32@dense, 1.6 us: int_5_5_clamp_base, int_11_5_clamp_base, int_17_5_clamp_base and 1 more
    run[35]()  # sigrid_hash:int64@global, 24.8 us: cat_0_3_sigrid_hash_extra3, cat_1_3_map_id_extra3, cat_2_4_map_id_extra3 and 49 more
    run[36]()  # clamp:float32@dense, 1.8 us: int_0_3_logit_extra0, int_1_5_boxcox_extra0, int_2_7_boxcox_extra2 and 23 more
    run[37]()  # map_id:int64@global, 21.5 us: cat_0_3_sigrid_hash_extra4, cat_1_3_map_id_extra4, cat_2_4_map_id_extra4 and 49 more
    run[38]()  # boxcox:float32@dense, 2.1 us: int_0_3_logit_extra1, int_1_5_boxcox_extra1, int_2_7_boxcox_extra3 and 23 more
    run[39]()  # clamp:int64@global, 4.8 us: cat_0_3_sigrid_hash_extra5, cat_1_3_map_id_extra5, cat_2_4_map_id_extra5 and 49 more
    run[40]()  # clamp:float32@dense, 1.8 us: int_0_3_logit_extra2, int_1_5_boxcox_extra2, int_2_7_boxcox_extra4 and 23 more
    run[41]()  # sigrid_hash:int64@global, 24.8 us: cat_0_3_sigrid_hash_extra6, cat_1_3_map_id_extra6, cat_2_4_map_id_extra6 and 49 more
    run[42]()  # boxcox:float32@dense, 2.1 us: int_0_3_logit_extra3, int_1_5_boxcox_extra3, int_2_7_boxcox_extra5 and 23 more
    run[43]()  # map_id:int64@global, 21.5 us: cat_0_3_sigrid_hash_extra7, cat_1_3_map_id_extra7, cat_2_4_map_id_extra7 and 49 more
    run[44]()  # clamp:float32@dense, 1.8 us: int_0_3_logit_extra4, int_1_5_boxcox_extra4, int_2_7_boxcox_extra6 and 23 more
    run[45]()  # clamp:int64@global, 4.8 us: cat_0_3_sigrid_hash_extra8, cat_1_3_map_id_extra8, cat_2_4_map_id_extra8 and 49 more
    run[46]()  # boxcox:float32@dense, 2.1 us: int_0_3_logit_extra5, int_1_5_boxcox_extra5, int_2_7_boxcox_extra7 and 23 more
    run[47]()  # sigrid_hash:int64@global, 24.8 us: cat_0_3_sigrid_hash_extra9, cat_1_3_map_id_extra9, cat_2_4_map_id_extra9 and 49 more
    run[48]()  # clamp:float32@dense, 1.8 us: int_0_3_logit_extra6, int_1_5_boxcox_extra6, int_2_7_boxcox_extra8 and 23 more
    run[49]()  # map_id:int64@global, 19.3 us: cat_1_3_map_id, cat_2_4_map_id_extra10, cat_3_4_map_id_extra10 and 42 more
    run[50]()  # boxcox:float32@dense, 2.1 us: int_0_3_logit, int_1_5_boxcox_extra7, int_2_7_boxcox_extra9 and 23 more
    run[51]()  # clamp:int64@global, 3.9 us: cat_2_4_map_id_extra11, cat_3_4_map_id_extra11, cat_4_6_sigrid_hash_extra11 and 35 more
    run[52]()  # clamp:float32@dense, 1.8 us: int_1_5_boxcox_extra8, int_2_7_boxcox_extra10, int_3_4_logit_extra8 and 18 more
    run[53]()  # sigrid_hash:int64@global, 15.4 us: cat_0_3_sigrid_hash, cat_4_6_sigrid_hash_extra12, cat_5_4_sigrid_hash and 28 more
    run[54]()  # boxcox:float32@dense, 2.1 us: int_1_5_boxcox_extra9, int_2_7_boxcox_extra11, int_3_4_logit and 18 more
    run[55]()  # map_id:int64@global, 12.5 us: cat_2_4_map_id, cat_3_4_map_id, cat_4_6_sigrid_hash_extra13 and 29 more
    run[56]()  # clamp:float32@dense, 1.7 us: int_1_5_boxcox_extra10, int_2_7_boxcox_extra12, int_4_5_logit_extra10 and 14 more
    run[57]()  # clamp:int64@global, 2.0 us: cat_4_6_sigrid_hash_extra14, cat_12_6_sigrid_hash_extra14, cat_20_6_sigrid_hash_extra14 and 3 more
    run[58]()  # map_id:int64@global, 3.0 us: cat_6_5_map_id, cat_14_5_map_id, cat_22_5_map_id and 3 more
    run[59]()  # boxcox:float32@dense, 2.1 us: int_1_5_boxcox, int_2_7_boxcox_extra13, int_4_5_logit and 14 more
    run[60]()  # sigrid_hash:int64@global, 7.5 us: cat_4_6_sigrid_hash_extra15, cat_7_5_sigrid_hash, cat_12_6_sigrid_hash_extra15 and 9 more
    run[61]()  # clamp:float32@dense, 1.6 us: int_2_7_boxcox_extra14, int_8_7_boxcox_extra14, int_14_7_boxcox_extra14 and 1 more
    run[62]()  # sigrid_hash:int64@global, 4.9 us: cat_4_6_sigrid_hash, cat_12_6_sigrid_hash, cat_20_6_sigrid_hash and 3 more
    run[63]()  # boxcox:float32@dense, 2.0 us: int_2_7_boxcox, int_8_7_boxcox, int_14_7_boxcox and 1 more
    run[64]()  # first_x:int64@global, 4.2 us: cat_0_4_first_x, cat_1_4_first_x, cat_2_5_first_x and 49 more
