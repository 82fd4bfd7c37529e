"""Readings turned into findings, tables and one page; never touches a tensor."""
