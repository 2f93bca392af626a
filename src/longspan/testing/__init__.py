"""Contracts that mixers keep, and what checks them: for this project's and for anybody's."""
