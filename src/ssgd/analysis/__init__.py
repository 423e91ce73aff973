"""Looking at minima: lines, planes, spectra and sharpness of any model and loss."""
