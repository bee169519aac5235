"""Problems, batches of them on a device, and what is spent on them."""
