"""S-SGD inside other people's training loops; each module needs the package it is named for."""
