"""`python -m trading_agent` is the command line."""

from trading_agent.cli.main import main

__all__ = ['main']

if __name__ == '__main__':
    main()
