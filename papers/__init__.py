"""Papers whose experiments can be run again with rarely, one package each."""
