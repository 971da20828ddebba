"""The effect seam: replay keys, the journal of effects and outcomes, and controllers."""
