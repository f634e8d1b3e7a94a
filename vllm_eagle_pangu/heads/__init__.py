# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3 heads for published targets, by the names of `eagle-pangu fetch-model`."""
