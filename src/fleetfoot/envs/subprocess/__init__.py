"""Gymnasium environments in processes of their own."""
