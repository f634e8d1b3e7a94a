# SPDX-License-Identifier: Apache-2.0
from hypothesis import settings

# Machines that run these tests may be busy; time is not what they hold.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")
