"""What ``mpsgrad train`` does: data, network, training loop, verification and the files it writes."""
