"""The experiments of Webb et al., "A Statistical Approach to Assessing Neural Network Robustness" (ICLR 2019)."""
