# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu report RUN`: one HTML page, and PNGs beside it, of a recorded run."""
