"""Contract tests for methods and estimators, also for those from outside the package.

One call checks everything that the library relies on:

    from l0arm.testing import check_estimator, check_method
    check_estimator(MyEstimator)
    check_method(lambda: my_method(lam=1e-3))

Each check compares with enumeration, with a second run or with a closed form, and raises
:class:`ContractError` with what was expected and what was found.
"""

from l0arm.testing._errors import ContractError
from l0arm.testing._estimator import check_estimator
from l0arm.testing._method import check_method

__all__ = ["ContractError", "check_estimator", "check_method"]
