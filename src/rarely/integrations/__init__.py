"""Where other programs meet rarely: one small file each, which imports that program and nobody else's."""
