"""How fast errors decay, beside the rates that Balog et al. 2018 prove."""
