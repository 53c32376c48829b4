"""Entry point of `python -m rljob_device_plugin`, which the device plugin's image starts."""

from rljob_device_plugin.main import main

if __name__ == "__main__":
    main()
