"""What the topologies on Ray share."""
