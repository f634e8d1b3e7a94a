# SPDX-License-Identifier: Apache-2.0
"""Heads for targets that lack one, and small targets to try them on: `eagle-pangu train`."""
