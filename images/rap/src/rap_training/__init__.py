"""Preprocessing that shares the GPU with recommendation training: RAP (ASPLOS'24) and beyond."""
