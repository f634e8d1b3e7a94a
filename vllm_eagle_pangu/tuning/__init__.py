# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu tune`: trees, a chain or neither: what is fastest here, on the user's prompts."""
