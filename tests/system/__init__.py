"""Tests of a whole daemon through what its users see."""
