"""Telecom: a customer whose phone, line or bill has a problem."""
