"""Builders and small worlds that several tests share; one module per thing that is built."""
