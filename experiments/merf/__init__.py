"""DP-MERF (Harder et al. 2021) on a grid of Gaussians and on images."""
