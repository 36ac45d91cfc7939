# make demo    train an agent on CartPole with this buffer, and show what it learned
# make check   run the quick tests
# make test    run all tests; ARGS="-k ring -x" goes to pytest
# make test-tf-agents    run the tests that need TF-Agents, on CPython 3.10 or 3.11, in an environment of their own
# make test-torch    run the tests that need PyTorch, JAX and pandas, in an environment of their own
# make test-integrations    run the tests that train with Stable-Baselines3, TorchRL and scripts in one file, or need cpprb, there too
# make docs    build the site of the documentation into build/site, and test it in a browser if there is one
# make example-scores    run the examples with three seeds, and write their scores into docs/examples.md (an hour or two)
# make learning-curves    train with Stable-Baselines3's buffer and with ours, and draw both (an hour)
# make test-datasets    run the tests of data sets that need the libraries whose formats they are
# make test-ray    run the tests that need Ray, in an environment of their own
# make constraints    write the exact versions of all that these commands install anew, with the newest
# make dev     the development set-up: everything below without another install
# make map     print every module of the package, with what it is
# make lint typecheck debug bench bench-processes bench-cluster cliffs bench-report guard wheel clean: see CONTRIBUTING.md
#
# Each command makes the virtual environment VENV and builds the package into it, as far as needed.

PYTHON ?= python3
VENV ?= .venv
TF_VENV ?= .venv-tf-agents
TORCH_VENV ?= .venv-torch
DATASETS_VENV ?= .venv-datasets
RAY_VENV ?= .venv-ray
PACKAGE ?= .
ARGS ?=

ifeq ($(OS),Windows_NT)
SCRIPTS := Scripts
else
SCRIPTS := bin
endif
BIN := $(VENV)/$(SCRIPTS)
RUN := $(BIN)/python
TF_BIN := $(TF_VENV)/$(SCRIPTS)
TORCH_BIN := $(TORCH_VENV)/$(SCRIPTS)
DATASETS_BIN := $(DATASETS_VENV)/$(SCRIPTS)
RAY_BIN := $(RAY_VENV)/$(SCRIPTS)

COMPILED := $(subst /,.,$(basename $(wildcard cpprb_like/*.pyx cpprb_like/*/*.pyx)))

# $(call environment,EXTRA,OPTIONS)
define environment
@$(PYTHON) -c "" 2>/dev/null || { \
	echo "No Python: '$(PYTHON)' does not run; install CPython 3.10 or newer, or name it as in 'make PYTHON=python3.12 test'." >&2; \
	exit 1; }
@$(PYTHON) tools/bootstrap.py --venv "$(VENV)" $(2) $(1)
endef

# For 'environment': a wheel that is given as PACKAGE is installed in place of a build.
WHEEL = $(if $(filter %.whl,$(PACKAGE)),--wheel "$(PACKAGE)")

# $(call libraries,FILE OF constraints/,ENVIRONMENT)
define libraries
$(PYTHON) tools/library_environment.py --venv "$(2)" --package "$(PACKAGE)" $(1)
endef

.PHONY: demo check test coverage test-tf-agents test-torch test-integrations example-scores learning-curves test-datasets test-ray constraints dev lint format typecheck debug asan bench bench-processes bench-cluster cliffs bench-report guard wheel map docs pages clean

demo:
	$(call environment,demo,$(WHEEL))
	$(RUN) examples/cartpole_dqn.py $(ARGS)

test:
	$(call environment,test)
	$(RUN) -m pytest $(ARGS)

# An answer in less than three minutes, once it is built: all but the slow tests, with few examples of each.
check: export HYPOTHESIS_PROFILE = quick
check:
	$(call environment,test)
	$(RUN) -m pytest -q -m "not slow" $(ARGS)

# The bridge to TF-Agents on the real thing. Its packages are of their time, so they have an environment of their own, in
# which the package is installed and not built in place: from here, or from PACKAGE, a wheel of it.
test-tf-agents:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info[:2] not in ((3, 10), (3, 11)))" 2>/dev/null || { \
		echo "TF-Agents needs CPython 3.10 or 3.11: name one as in 'make PYTHON=python3.11 test-tf-agents'." >&2; \
		exit 1; }
	$(call libraries,tf-agents,$(TF_VENV))
	CPPRB_LIKE_REQUIRE=tf_agents $(TF_BIN)/pytest tests/tf_agents $(ARGS)

# Tensors in and out, those of JAX too, and the front of ReAgent. JAX warns of forks: so workers are forked in a run of their own,
# and of the documentation there is only what needs these packages. Some tests switch JAX to 64 bits, so those of the device run apart.
test-torch:
	$(call libraries,tensors,$(TORCH_VENV))
	CPPRB_LIKE_REQUIRE=torch,jax,ml_dtypes,pandas,tensordict,dm_env,gymnasium $(TORCH_BIN)/pytest \
		tests/compat/test_reagent*.py tests/fields/test_narrow_dtypes.py tests/buffers/test_out.py tests/buffers/test_tensors.py tests/buffers/test_learners.py \
		tests/samplers/test_prioritized_misuse.py::test_tensors_are_priorities_and_indexes $(ARGS)
	CPPRB_LIKE_REQUIRE=torch,jax,ml_dtypes,brax $(TORCH_BIN)/pytest tests/device $(ARGS)
	CPPRB_LIKE_REQUIRE=torch,tqdm $(TORCH_BIN)/pytest tests/integrations/test_torch_datasets.py tests/project/test_waiting.py $(ARGS)
	CPPRB_LIKE_REQUIRE=torch,jax,pandas,tensordict,dm_env,gymnasium $(TORCH_BIN)/pytest -m packages tests/project/test_docs.py

# Training libraries on the real thing, in the environment of test-torch, as PyTorch is large; and libraries that take batches of
# rows of any length, in a run of their own, as their imports take seconds and warn.
test-integrations:
	$(call libraries,libraries,$(TORCH_VENV))
	CPPRB_LIKE_REQUIRE=torch,stable_baselines3,gymnasium,ale_py,cv2,torchrl,tensordict,tianshou,jax,cleanrl,h5py,matplotlib,tqdm $(TORCH_BIN)/pytest \
		tests/libraries tests/integrations/test_libraries_missing.py \
		tests/project/test_docs.py -k "libraries or stable-baselines3 or stable_baselines3 or torchrl or tianshou" $(ARGS)
	CPPRB_LIKE_REQUIRE=torch,transformers,trl,torch_geometric,jax $(TORCH_BIN)/pytest tests/takers $(ARGS)
	CPPRB_LIKE_REQUIRE=cpprb,envpool,highway_env,gymnasium $(TORCH_BIN)/pytest \
		tests/integrations/test_cpprb_env_dict.py::test_same_as_cpprb tests/compat/test_training.py::test_the_loop_is_that_of_cpprb \
		tests/checkpoint/test_cpprb_files.py::test_cpprb_reads_and_writes_the_same_files tests/integrations/test_gymnasium.py::test_envpool \
		tests/views/test_hindsight.py::test_recorded_goal_environment_of_another_package
	CPPRB_LIKE_REQUIRE=torch,prometheus_client,tensorboard,wandb,mlflow $(TORCH_BIN)/pytest tests/libraries/test_exporters.py $(ARGS)

# In the environment of test-integrations.
example-scores:
	$(TORCH_BIN)/python benchmarks/example_scores.py $(ARGS)

learning-curves:
	$(TORCH_BIN)/python benchmarks/learning_curves.py $(ARGS)

# The formats of data sets, with the libraries that they are of as judges.
test-datasets:
	$(call libraries,datasets,$(DATASETS_VENV))
	CPPRB_LIKE_REQUIRE=datasets,minari,tensorflow,tensorflow_datasets,gymnasium,h5py,pyarrow,lerobot,av,torch,torchvision,PIL,d4rl,embodied,gym HF_HUB_OFFLINE=1 $(DATASETS_BIN)/pytest \
		tests/datasets/test_minari.py tests/datasets/test_rlds.py tests/datasets/test_lerobot.py \
		tests/datasets/test_d4rl.py tests/datasets/test_dreamerv3.py tests/datasets/test_any_length.py tests/datasets/test_robots.py $(ARGS)

# Ray, in runs of its own: Ray changes what pyarrow knows, and a process that starts Ray's twice ends with a warning.
test-ray:
	$(call libraries,ray,$(RAY_VENV))
	CPPRB_LIKE_REQUIRE=ray,torch,gymnasium,pyarrow $(RAY_BIN)/pytest tests/datasets/test_ray.py $(ARGS)
	CPPRB_LIKE_REQUIRE=ray,torch,gymnasium $(RAY_BIN)/pytest tests/rllib $(ARGS)
	CPPRB_LIKE_REQUIRE=ray,gymnasium,matplotlib,tqdm $(RAY_BIN)/pytest tests/cluster $(ARGS)
	CPPRB_LIKE_REQUIRE=ray,torch,gymnasium RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 $(RAY_BIN)/pytest tests/project/test_docs.py -k "integrations.rllib or cluster"

# Each command installs the exact versions in constraints/. This writes them anew, with the newest: of all files, or of those named in ARGS.
# ARGS=--keep adds what is new in pyproject.toml and constraints/*.in, and moves nothing on. CPPRB_LIKE_PACKAGES=newest makes the
# commands install the newest of everything, CPPRB_LIKE_PACKAGES=checked fail where a package has another version than the files.
constraints:
	$(PYTHON) tools/renew_constraints.py $(ARGS)

dev:
	$(call environment,dev)

lint:
	$(call environment,dev)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	PATH="$(BIN):$$PATH" cython-lint cpprb_like

format:
	$(call environment,dev)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

typecheck:
	$(call environment,dev)
	$(RUN) -m mypy
	$(RUN) -m mypy.stubtest --mypy-config-file pyproject.toml --allowlist tools/stubtest-allowlist.txt --concise $(COMPILED)
	CPPRB_LIKE_REQUIRE=mypy,pyright,typing_extensions $(RUN) -m pytest -q tests/typing $(ARGS)

# The tests on modules that check every index.
debug: export CPPRB_LIKE_DEBUG = 1
debug:
	$(call environment,test)
	$(RUN) -m pytest $(ARGS)

# Which lines the tests run, those of Cython too (gcc): a table by file. In a copy of the tree, whose build checks every index.
coverage:
	$(PYTHON) tools/measure_coverage.py $(ARGS)

# The tests on modules built with AddressSanitizer (Linux and gcc). The sanitizer and the C++ library, which other packages
# need, must be there from the start. What lives as long as the process is no leak; and little freed memory is kept back,
# because there are tests that measure it.
PRELOAD = $(shell gcc -print-file-name=libasan.so) $(shell gcc -print-file-name=libstdc++.so.6)
asan: export CPPRB_LIKE_SANITIZE = address
asan:
	$(call environment,test)
	LD_PRELOAD="$(PRELOAD)" ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=4 PYTHONMALLOC=malloc $(RUN) -m pytest $(ARGS)

# Against floors and peers, each peer in an environment of its own; ARGS=--quick measures less, --help says what else there is.
bench:
	$(call environment,test)
	$(RUN) benchmarks/run.py $(ARGS)

# Replays that processes share, beside cpprb's and Reverb.
bench-processes:
	$(call environment,test)
	$(RUN) benchmarks/processes.py $(ARGS)

# Replays of a Ray cluster, beside RLlib's, TorchRL's and Reverb; and what a greater cluster would do.
bench-cluster:
	$(call environment,test)
	$(RUN) benchmarks/cluster.py $(ARGS)

# States and spellings that once made a call far slower, beside the usual ones; ARGS="--before /path/to/python" measures another
# checkout in the same run, --only and --effort full as for what is in benchmarks/cliffs.py.
cliffs:
	$(call environment,test)
	$(RUN) benchmarks/cliffs.py $(ARGS)

# The instructions of the hot paths, under valgrind, against those in benchmarks/guard/counts.json.
guard:
	$(call environment,test)
	PYTHONPATH=benchmarks $(RUN) -m guard $(ARGS)

# The tables of README.md and of pages under docs/, and the pictures, from benchmarks/results.
bench-report:
	$(call environment,test)
	$(RUN) benchmarks/report.py $(ARGS)

map:
	@$(PYTHON) tools/module_map.py $(ARGS)

# The site, without a network: a warning, a link to nowhere and a public name without an entry are errors. Then its tests, and the
# examples of pages and docstrings. PACKAGE=dist/NAME.whl takes the modules of a wheel, and needs no compiler. CPPRB_LIKE_ONLINE=1 links to the documentation of NumPy, Gymnasium and PyTorch too.
SITE = build/site
ISOLATED = $(if $(WHEEL),-P)
docs:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null || { \
		echo "Sphinx needs CPython 3.11 or newer: name one as in 'make PYTHON=python3.12 docs'." >&2; \
		exit 1; }
	$(call environment,docs test,$(WHEEL))
	rm -rf $(SITE)
	$(RUN) $(ISOLATED) -m sphinx --builder html --fail-on-warning --keep-going --nitpicky --fresh-env --quiet --jobs auto \
		--doctree-dir build/doctrees docs $(SITE)
	$(RUN) $(ISOLATED) -m pytest -q tests/site tests/project/test_docs.py $(ARGS)

# docs/combinations.md, from the list of combinations that are tested.
pages:
	$(call environment,test)
	$(RUN) tools/combinations_page.py

# The sdist, and a wheel from nothing but the sdist; then a buffer and the tests run on the wheel, outside the tree and
# where there is no compiler.
wheel:
	$(call environment,dev)
	rm -rf dist
	$(RUN) -m build --quiet --outdir dist
	$(RUN) -m twine check --strict dist/*
	$(RUN) tools/check_wheel.py dist/*.whl $(ARGS)

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	test ! -f "$(VENV)/pyvenv.cfg" || rm -rf "$(VENV)"
	rm -rf .bench
	test ! -f "$(TF_VENV)/pyvenv.cfg" || rm -rf "$(TF_VENV)"
	test ! -f "$(TORCH_VENV)/pyvenv.cfg" || rm -rf "$(TORCH_VENV)"
	test ! -f "$(DATASETS_VENV)/pyvenv.cfg" || rm -rf "$(DATASETS_VENV)"
	test ! -f "$(RAY_VENV)/pyvenv.cfg" || rm -rf "$(RAY_VENV)"
	rm -rf .venv-constraints .venv-coverage
	find cpprb_like tests tools benchmarks examples -name __pycache__ -prune -exec rm -rf {} +
	find cpprb_like \( -name '*.so' -o -name '*.pyd' \) -delete
