"""Generated: preprocessing of plan1 on rank 0 of 1.

106 operators in 106 launches, 202.6 us predicted by themselves,
0.0 us of them beyond what the stages hide.
Fusion: asap, gap 0.00 %; as soon as possible, no search.
"""


def emb_fwd(run):
    """40.0 us predicted, beside 26.2 us of training that hide 40.0."""
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
    run[13]()  # fill_null:int64@global, 1.6 us: cat_0_0_fill_null
    run[14]()  # fill_null:int64@global, 1.6 us: cat_1_0_fill_null
    run[15]()  # fill_null:int64@global, 1.6 us: cat_2_0_fill_null
    run[16]()  # fill_null:int64@global, 1.6 us: cat_3_0_fill_null
    run[17]()  # fill_null:int64@global, 1.6 us: cat_4_0_fill_null
    run[18]()  # fill_null:int64@global, 1.6 us: cat_5_0_fill_null
    run[19]()  # fill_null:int64@global, 1.6 us: cat_6_0_fill_null
    run[20]()  # fill_null:int64@global, 1.6 us: cat_7_0_fill_null
    run[21]()  # fill_null:int64@global, 1.6 us: cat_8_0_fill_null
    run[22]()  # fill_null:int64@global, 1.6 us: cat_9_0_fill_null
    run[23]()  # fill_null:int64@global, 1.6 us: cat_10_0_fill_null
    run[24]()  # fill_null:int64@global, 1.6 us: cat_11_0_fill_null


def mlp_bwd(run):
    """147.0 us predicted, beside 1190.9 us of training that hide 147.3."""
    run[25]()  # fill_null:int64@global, 1.6 us: cat_12_0_fill_null
    run[26]()  # fill_null:int64@global, 1.6 us: cat_13_0_fill_null
    run[27]()  # fill_null:int64@global, 1.6 us: cat_14_0_fill_null
    run[28]()  # fill_null:int64@global, 1.6 us: cat_15_0_fill_null
    run[29]()  # fill_null:int64@global, 1.6 us: cat_16_0_fill_null
    run[30]()  # fill_null:int64@global, 1.6 us: cat_17_0_fill_null
    run[31]()  # fill_null:int64@global, 1.6 us: cat_18_0_fill_null
    run[32]()  # fill_null:int64@global, 1.6 us: cat_19_0_fill_null
    run[33]()  # fill_null:int64@global, 1.6 us: cat_20_0_fill_null
    run[34]()  # fill_null:int64@global, 1.6 us: cat_21_0_fill_null
    run[35]()  # fill_null:int64@global, 1.6 us: cat_22_0_fill_null
    run[36]()  # fill_null:int64@global, 1.6 us: cat_23_0_fill_null
    run[37]()  # fill_null:int64@global, 1.6 us: cat_24_0_fill_null
    run[38]()  # fill_null:int64@global, 1.6 us: cat_25_0_fill_null
    run[39]()  # fill_null:float32@global, 1.6 us: int_0_0_fill_null
    run[40]()  # logit:float32@dense, 1.7 us: int_0_1_logit
    run[41]()  # logit:float32@dense, 1.7 us: int_1_1_logit
    run[42]()  # logit:float32@dense, 1.7 us: int_2_1_logit
    run[43]()  # logit:float32@dense, 1.7 us: int_3_1_logit
    run[44]()  # logit:float32@dense, 1.7 us: int_4_1_logit
    run[45]()  # logit:float32@dense, 1.7 us: int_5_1_logit
    run[46]()  # logit:float32@dense, 1.7 us: int_6_1_logit
    run[47]()  # logit:float32@dense, 1.7 us: int_7_1_logit
    run[48]()  # logit:float32@dense, 1.7 us: int_8_1_logit
    run[49]()  # logit:float32@dense, 1.7 us: int_9_1_logit
    run[50]()  # logit:float32@dense, 1.7 us: int_10_1_logit
    run[51]()  # logit:float32@dense, 1.7 us: int_11_1_logit
    run[52]()  # logit:float32@dense, 1.7 us: int_12_1_logit
    run[53]()  # sigrid_hash:int64@global, 2.7 us: cat_0_1_sigrid_hash
    run[54]()  # sigrid_hash:int64@global, 2.7 us: cat_1_1_sigrid_hash
    run[55]()  # sigrid_hash:int64@global, 2.7 us: cat_2_1_sigrid_hash
    run[56]()  # sigrid_hash:int64@global, 2.7 us: cat_3_1_sigrid_hash
    run[57]()  # sigrid_hash:int64@global, 2.7 us: cat_4_1_sigrid_hash
    run[58]()  # sigrid_hash:int64@global, 2.7 us: cat_5_1_sigrid_hash
    run[59]()  # sigrid_hash:int64@global, 2.7 us: cat_6_1_sigrid_hash
    run[60]()  # sigrid_hash:int64@global, 2.7 us: cat_7_1_sigrid_hash
    run[61]()  # sigrid_hash:int64@global, 2.7 us: cat_8_1_sigrid_hash
    run[62]()  # sigrid_hash:int64@global, 2.7 us: cat_9_1_sigrid_hash
    run[63]()  # sigrid_hash:int64@global, 2.7 us: cat_10_1_sigrid_hash
    run[64]()  # sigrid_hash:int64@global, 2.7 us: cat_11_1_sigrid_hash
    run[65]()  # sigrid_hash:int64@global, 2.7 us: cat_12_1_sigrid_hash
    run[66]()  # sigrid_hash:int64@global, 2.7 us: cat_13_1_sigrid_hash
    run[67]()  # sigrid_hash:int64@global, 2.7 us: cat_14_1_sigrid_hash
    run[68]()  # sigrid_hash:int64@global, 2.7 us: cat_15_1_sigrid_hash
    run[69]()  # sigrid_hash:int64@global, 2.7 us: cat_16_1_sigrid_hash
    run[70]()  # sigrid_hash:int64@global, 2.7 us: cat_17_1_sigrid_hash
    run[71]()  # sigrid_hash:int64@global, 2.7 us: cat_18_1_sigrid_hash
    run[72]()  # sigrid_hash:int64@global, 2.7 us: cat_19_1_sigrid_hash
    run[73]()  # sigrid_hash:int64@global, 2.7 us: cat_20_1_sigrid_hash
    run[74]()  # sigrid_hash:int64@global, 2.7 us: cat_21_1_sigrid_hash
    run[75]()  # sigrid_hash:int64@global, 2.7 us: cat_22_1_sigrid_hash
    run[76]()  # sigrid_hash:int64@global, 2.7 us: cat_23_1_sigrid_hash
    run[77]()  # sigrid_hash:int64@global, 2.7 us: cat_24_1_sigrid_hash
    run[78]()  # sigrid_hash:int64@global, 2.7 us: cat_25_1_sigrid_hash
    run[79]()  # bucketize:float32@global, 1.7 us: cat_26
    run[80]()  # first_x:int64@global, 1.7 us: cat_0_2_first_x
    run[81]()  # first_x:int64@global, 1.7 us: cat_1_2_first_x
    run[82]()  # first_x:int64@global, 1.7 us: cat_2_2_first_x
    run[83]()  # first_x:int64@global, 1.7 us: cat_3_2_first_x
    run[84]()  # first_x:int64@global, 1.7 us: cat_4_2_first_x
    run[85]()  # first_x:int64@global, 1.7 us: cat_5_2_first_x
    run[86]()  # first_x:int64@global, 1.7 us: cat_6_2_first_x
    run[87]()  # first_x:int64@global, 1.7 us: cat_7_2_first_x
    run[88]()  # first_x:int64@global, 1.7 us: cat_8_2_first_x
    run[89]()  # first_x:int64@global, 1.7 us: cat_9_2_first_x
    run[90]()  # first_x:int64@global, 1.7 us: cat_10_2_first_x
    run[91]()  # first_x:int64@global, 1.7 us: cat_11_2_first_x
    run[92]()  # first_x:int64@global, 1.7 us: cat_12_2_first_x
    run[93]()  # first_x:int64@global, 1.7 us: cat_13_2_first_x
    run[94]()  # first_x:int64@global, 1.7 us: cat_14_2_first_x
    run[95]()  # first_x:int64@global, 1.7 us: cat_15_2_first_x
    run[96]()  # first_x:int64@global, 1.7 us: cat_16_2_first_x


def emb_bwd(run):
    """15.7 us predicted, beside 70.5 us of training that hide 111.5."""
    run[97]()  # first_x:int64@global, 1.7 us: cat_17_2_first_x
    run[98]()  # first_x:int64@global, 1.7 us: cat_18_2_first_x
    run[99]()  # first_x:int64@global, 1.7 us: cat_19_2_first_x
    run[100]()  # first_x:int64@global, 1.7 us: cat_20_2_first_x
    run[101]()  # first_x:int64@global, 1.7 us: cat_21_2_first_x
    run[102]()  # first_x:int64@global, 1.7 us: cat_22_2_first_x
    run[103]()  # first_x:int64@global, 1.7 us: cat_23_2_first_x
    run[104]()  # first_x:int64@global, 1.7 us: cat_24_2_first_x
    run[105]()  # first_x:int64@global, 1.7 us: cat_25_2_first_x
