"""What is asked: estimate, test, certify, verify, monitor, augment."""
