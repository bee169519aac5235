"""Files in, verdicts out: VNN-LIB, Planet's rlv and the files of VNN-COMP."""
