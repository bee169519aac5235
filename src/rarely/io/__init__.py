"""What comes in from files: networks, properties, pictures. Nothing here knows samplers."""
