import os
from tests.engines import test_vllm_contract as t
from tests.engines.test_vllm_contract import *
t.SETTINGS = t.SETTINGS.model_copy(update={"urls": ("http://127.0.0.1:8101",), "reply_seconds": 60.0})
