"""Optuna chooses settings, strop trains with them and measures: ask and tell. `strop ablate --grid` does without."""

try:
    import optuna
except ModuleNotFoundError:
    raise SystemExit("this example needs optuna: pip install optuna") from None

import strop

study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
for number in range(6):
    trial = study.ask()
    settings = {
        "optim.lr": trial.suggest_float("optim.lr", 3e-5, 1e-3, log=True),
        "sampling.temperature": trial.suggest_float("sampling.temperature", 0.7, 1.2),
    }
    run = strop.train(
        "embedded", recipe="quickstart", steps=8, settings=settings, out=f"runs/sweep/{number}", resume=True
    )
    study.tell(trial, list(run.pass_rates.values())[-1])
print(study.best_value, study.best_params)
