# SPDX-License-Identifier: Apache-2.0
"""Values of a decoding step, in torch alone: `vllm_eagle_pangu.step` puts them in order.

`shape.TreeShape` says how large a tree is, chosen for each request by a `policy.TreePolicy`;
`draft.TreeGrower` grows candidates level by level into a `tree.TreeBatch` of M+1 rows with the root
in row 0; `paths.AcceptedPaths` is what a step accepted; `ops.Ops` are the kernels that an engine
chose.
"""
