"""The parts of a round: small replaceable pieces, each a settings class that also does what it says."""
