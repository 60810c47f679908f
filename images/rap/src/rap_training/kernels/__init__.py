"""GPU kernels in Triton; `rap_training.reference` says what they must compute."""
