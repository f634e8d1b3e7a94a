# SPDX-License-Identifier: Apache-2.0
"""One decoding step in torch alone: data types here, tensor ops in `vllm_eagle_pangu.kernels`.

The order of a step, for B requests whose roots are their last sampled tokens:

1. draft    `draft.TreeGrower` takes the drafter's top-W children level by level (`draft_batch`
            made the drafter's input of the tokens accepted last time);
2. tree     `TreeGrower.finish` keeps the best M of all candidates: `kernels.tree_build`,
            a `tree.TreeBatch` of M+1 rows with the root in row 0;
3. mask     `mask` says which rows see which; `kernels.tree_attention` verifies all rows in one
            target forward, keeping their K/V out of the pages;
4. accept   one target draw per row, then the walk from the root: `kernels.tree_accept`,
            a `paths.AcceptedPaths`;
5. commit   only the accepted rows' K/V go to pages: `kernels.kv_commit`.

How large the tree is, is data: `shape.TreeShape`, chosen per step by a `policy.TreePolicy`.
"""
