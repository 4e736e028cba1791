"""The queue: windows in reservation order, with a bound on their staleness."""
