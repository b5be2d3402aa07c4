"""The parts of a round: each is a settings class that implements the choice it names."""
