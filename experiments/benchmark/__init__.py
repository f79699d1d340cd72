"""Times of the library, of its peers and of the device."""
