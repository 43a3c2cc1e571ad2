"""Links between names: candidates, evidence, calibrated confidence."""
