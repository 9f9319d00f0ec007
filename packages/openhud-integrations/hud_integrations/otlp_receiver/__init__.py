"""Receiver of OpenTelemetry traces (`POST /v1/traces`): spans in the conventions for generative AI become runs."""
