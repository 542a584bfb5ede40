"""The simulators: one file or folder each, behind one contract (`vec_env`) and its test (`check`)."""
