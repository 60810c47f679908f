"""Generated: preprocessing of plan0 on rank 1 of 2.

70 operators in 70 launches, 135.8 us predicted by themselves,
0.0 us of them beyond what the stages hide.
Fusion: asap, gap 0.00 %; as soon as possible, no search.
"""


def emb_fwd(run):
    """88.0 us predicted, beside 149.6 us of training that hide 89.3."""
    run[0]()  # fill_null:float32@dense, 1.6 us: int_0_0_fill_null
    run[1]()  # fill_null:float32@dense, 1.6 us: int_1_0_fill_null
    run[2]()  # fill_null:float32@dense, 1.6 us: int_2_0_fill_null
    run[3]()  # fill_null:float32@dense, 1.6 us: int_3_0_fill_null
    run[4]()  # fill_null:float32@dense, 1.6 us: int_4_0_fill_null
    run[5]()  # fill_null:float32@dense, 1.6 us: int_5_0_fill_null
    run[6]()  # fill_null:float32@dense, 1.6 us: int_6_0_fill_null
    run[7]()  # fill_null:float32@dense, 1.6 us: int_7_0_fill_null
    run[8]()  # fill_null:float32@dense, 1.6 us: int_8_0_fill_null
    run[9]()  # fill_null:float32@dense, 1.6 us: int_9_0_fill_null
    run[10]()  # fill_null:float32@dense, 1.6 us: int_10_0_fill_null
    run[11]()  # fill_null:float32@dense, 1.6 us: int_11_0_fill_null
    run[12]()  # fill_null:float32@dense, 1.6 us: int_12_0_fill_null
    run[13]()  # fill_null:int64@global, 1.7 us: cat_3_0_fill_null
    run[14]()  # fill_null:int64@global, 1.7 us: cat_9_0_fill_null
    run[15]()  # fill_null:int64@global, 1.7 us: cat_12_0_fill_null
    run[16]()  # fill_null:int64@global, 1.7 us: cat_13_0_fill_null
    run[17]()  # fill_null:int64@global, 1.7 us: cat_14_0_fill_null
    run[18]()  # fill_null:int64@global, 1.7 us: cat_15_0_fill_null
    run[19]()  # fill_null:int64@global, 1.7 us: cat_16_0_fill_null
    run[20]()  # fill_null:int64@global, 1.7 us: cat_17_0_fill_null
    run[21]()  # fill_null:int64@global, 1.7 us: cat_18_0_fill_null
    run[22]()  # fill_null:int64@global, 1.7 us: cat_19_0_fill_null
    run[23]()  # fill_null:int64@global, 1.7 us: cat_20_0_fill_null
    run[24]()  # fill_null:int64@global, 1.7 us: cat_21_0_fill_null
    run[25]()  # fill_null:int64@global, 1.7 us: cat_24_0_fill_null
    run[26]()  # fill_null:int64@global, 1.7 us: cat_25_0_fill_null
    run[27]()  # fill_null:float32@global, 1.7 us: int_0_0_fill_null
    run[28]()  # logit:float32@dense, 1.7 us: int_0_1_logit
    run[29]()  # logit:float32@dense, 1.7 us: int_1_1_logit
    run[30]()  # logit:float32@dense, 1.7 us: int_2_1_logit
    run[31]()  # logit:float32@dense, 1.7 us: int_3_1_logit
    run[32]()  # logit:float32@dense, 1.7 us: int_4_1_logit
    run[33]()  # logit:float32@dense, 1.7 us: int_5_1_logit
    run[34]()  # logit:float32@dense, 1.7 us: int_6_1_logit
    run[35]()  # logit:float32@dense, 1.7 us: int_7_1_logit
    run[36]()  # logit:float32@dense, 1.7 us: int_8_1_logit
    run[37]()  # logit:float32@dense, 1.7 us: int_9_1_logit
    run[38]()  # logit:float32@dense, 1.7 us: int_10_1_logit
    run[39]()  # logit:float32@dense, 1.7 us: int_11_1_logit
    run[40]()  # logit:float32@dense, 1.7 us: int_12_1_logit
    run[41]()  # sigrid_hash:int64@global, 2.8 us: cat_3_1_sigrid_hash
    run[42]()  # sigrid_hash:int64@global, 2.8 us: cat_9_1_sigrid_hash
    run[43]()  # sigrid_hash:int64@global, 2.8 us: cat_12_1_sigrid_hash
    run[44]()  # sigrid_hash:int64@global, 2.8 us: cat_13_1_sigrid_hash
    run[45]()  # sigrid_hash:int64@global, 2.8 us: cat_14_1_sigrid_hash
    run[46]()  # sigrid_hash:int64@global, 2.8 us: cat_15_1_sigrid_hash
    run[47]()  # sigrid_hash:int64@global, 2.8 us: cat_16_1_sigrid_hash


def grad_comm(run):
    """47.8 us predicted, beside 97.7 us of training that hide 76.3."""
    run[48]()  # sigrid_hash:int64@global, 2.8 us: cat_17_1_sigrid_hash
    run[49]()  # sigrid_hash:int64@global, 2.8 us: cat_18_1_sigrid_hash
    run[50]()  # sigrid_hash:int64@global, 2.8 us: cat_19_1_sigrid_hash
    run[51]()  # sigrid_hash:int64@global, 2.8 us: cat_20_1_sigrid_hash
    run[52]()  # sigrid_hash:int64@global, 2.8 us: cat_21_1_sigrid_hash
    run[53]()  # sigrid_hash:int64@global, 2.8 us: cat_24_1_sigrid_hash
    run[54]()  # sigrid_hash:int64@global, 2.8 us: cat_25_1_sigrid_hash
    run[55]()  # bucketize:float32@global, 1.8 us: cat_26
    run[56]()  # first_x:int64@global, 1.9 us: cat_3_2_first_x
    run[57]()  # first_x:int64@global, 1.9 us: cat_9_2_first_x
    run[58]()  # first_x:int64@global, 1.9 us: cat_12_2_first_x
    run[59]()  # first_x:int64@global, 1.9 us: cat_13_2_first_x
    run[60]()  # first_x:int64@global, 1.9 us: cat_14_2_first_x
    run[61]()  # first_x:int64@global, 1.9 us: cat_15_2_first_x
    run[62]()  # first_x:int64@global, 1.9 us: cat_16_2_first_x
    run[63]()  # first_x:int64@global, 1.9 us: cat_17_2_first_x
    run[64]()  # first_x:int64@global, 1.9 us: cat_18_2_first_x
    run[65]()  # first_x:int64@global, 1.9 us: cat_19_2_first_x
    run[66]()  # first_x:int64@global, 1.9 us: cat_20_2_first_x
    run[67]()  # first_x:int64@global, 1.9 us: cat_21_2_first_x
    run[68]()  # first_x:int64@global, 1.9 us: cat_24_2_first_x
    run[69]()  # first_x:int64@global, 1.9 us: cat_25_2_first_x
