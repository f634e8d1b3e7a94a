# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu tune`: which tree, chain or neither is fastest here, on the user's prompts."""
