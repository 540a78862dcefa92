"""The API: verbs over plain values, and one thin edge that speaks HTTP."""
