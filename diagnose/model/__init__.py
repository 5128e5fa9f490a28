"""The types that the stages hand on: events, captures, diagnoses, charts, forecasts; and interval algebra."""
