"""Generated: preprocessing of plan0 on rank 0 of 2.

62 operators in 62 launches, 119.5 us predicted by themselves,
0.0 us of them beyond what the stages hide.
Fusion: asap, gap 0.00 %; as soon as possible, no search.
"""


def emb_fwd(run):
    """88.9 us predicted, beside 149.6 us of training that hide 89.3."""
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
    run[13]()  # fill_null:int64@global, 1.7 us: cat_0_0_fill_null
    run[14]()  # fill_null:int64@global, 1.7 us: cat_1_0_fill_null
    run[15]()  # fill_null:int64@global, 1.7 us: cat_2_0_fill_null
    run[16]()  # fill_null:int64@global, 1.7 us: cat_4_0_fill_null
    run[17]()  # fill_null:int64@global, 1.7 us: cat_5_0_fill_null
    run[18]()  # fill_null:int64@global, 1.7 us: cat_6_0_fill_null
    run[19]()  # fill_null:int64@global, 1.7 us: cat_7_0_fill_null
    run[20]()  # fill_null:int64@global, 1.7 us: cat_8_0_fill_null
    run[21]()  # fill_null:int64@global, 1.7 us: cat_10_0_fill_null
    run[22]()  # fill_null:int64@global, 1.7 us: cat_11_0_fill_null
    run[23]()  # fill_null:int64@global, 1.7 us: cat_22_0_fill_null
    run[24]()  # fill_null:int64@global, 1.7 us: cat_23_0_fill_null
    run[25]()  # logit:float32@dense, 1.7 us: int_0_1_logit
    run[26]()  # logit:float32@dense, 1.7 us: int_1_1_logit
    run[27]()  # logit:float32@dense, 1.7 us: int_2_1_logit
    run[28]()  # logit:float32@dense, 1.7 us: int_3_1_logit
    run[29]()  # logit:float32@dense, 1.7 us: int_4_1_logit
    run[30]()  # logit:float32@dense, 1.7 us: int_5_1_logit
    run[31]()  # logit:float32@dense, 1.7 us: int_6_1_logit
    run[32]()  # logit:float32@dense, 1.7 us: int_7_1_logit
    run[33]()  # logit:float32@dense, 1.7 us: int_8_1_logit
    run[34]()  # logit:float32@dense, 1.7 us: int_9_1_logit
    run[35]()  # logit:float32@dense, 1.7 us: int_10_1_logit
    run[36]()  # logit:float32@dense, 1.7 us: int_11_1_logit
    run[37]()  # logit:float32@dense, 1.7 us: int_12_1_logit
    run[38]()  # sigrid_hash:int64@global, 2.8 us: cat_0_1_sigrid_hash
    run[39]()  # sigrid_hash:int64@global, 2.8 us: cat_1_1_sigrid_hash
    run[40]()  # sigrid_hash:int64@global, 2.8 us: cat_2_1_sigrid_hash
    run[41]()  # sigrid_hash:int64@global, 2.8 us: cat_4_1_sigrid_hash
    run[42]()  # sigrid_hash:int64@global, 2.8 us: cat_5_1_sigrid_hash
    run[43]()  # sigrid_hash:int64@global, 2.8 us: cat_6_1_sigrid_hash
    run[44]()  # sigrid_hash:int64@global, 2.8 us: cat_7_1_sigrid_hash
    run[45]()  # sigrid_hash:int64@global, 2.8 us: cat_8_1_sigrid_hash
    run[46]()  # sigrid_hash:int64@global, 2.8 us: cat_10_1_sigrid_hash


def grad_comm(run):
    """30.6 us predicted, beside 97.7 us of training that hide 76.3."""
    run[47]()  # sigrid_hash:int64@global, 2.8 us: cat_11_1_sigrid_hash
    run[48]()  # sigrid_hash:int64@global, 2.8 us: cat_22_1_sigrid_hash
    run[49]()  # sigrid_hash:int64@global, 2.8 us: cat_23_1_sigrid_hash
    run[50]()  # first_x:int64@global, 1.9 us: cat_0_2_first_x
    run[51]()  # first_x:int64@global, 1.9 us: cat_1_2_first_x
    run[52]()  # first_x:int64@global, 1.9 us: cat_2_2_first_x
    run[53]()  # first_x:int64@global, 1.9 us: cat_4_2_first_x
    run[54]()  # first_x:int64@global, 1.9 us: cat_5_2_first_x
    run[55]()  # first_x:int64@global, 1.9 us: cat_6_2_first_x
    run[56]()  # first_x:int64@global, 1.9 us: cat_7_2_first_x
    run[57]()  # first_x:int64@global, 1.9 us: cat_8_2_first_x
    run[58]()  # first_x:int64@global, 1.9 us: cat_10_2_first_x
    run[59]()  # first_x:int64@global, 1.9 us: cat_11_2_first_x
    run[60]()  # first_x:int64@global, 1.9 us: cat_22_2_first_x
    run[61]()  # first_x:int64@global, 1.9 us: cat_23_2_first_x
